"""Stands for a system without files in memory."""

import os

del os.memfd_create
