# The image of ray.yaml: Ray with the Python package.
#   cargo xtask test wheel    # the package, in target/xtask/wheel/dist/
#   docker build -f deploy/kubernetes/ray.Dockerfile -t rollmesh-ray target/xtask/wheel/dist
# pip refuses a package that was built with a newer C library than the image's.
FROM rayproject/ray:latest
COPY rollmesh-*.whl /tmp/
RUN pip install --no-cache-dir /tmp/rollmesh-*.whl
