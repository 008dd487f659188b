"""`python -m rollmesh`: the command line."""

from ._program import main

main()
