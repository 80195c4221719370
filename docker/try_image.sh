#!/usr/bin/env bash
# Builds the Dockerfile as it is and runs what is in the image, without a Docker engine: by buildah, as root or with
# subordinate user ids. Takes some minutes and 8 GB of disk below $TMPDIR, and leaves neither image nor files behind.
#
#   docker/try_image.sh [OPTION OF `buildah build`]...       # --build-arg DEVICE=cuda, --volume, --from, ..
#
# Where no registry is in reach, --from names a base image of one's own, archives included: it needs Python 3.11 with pip,
# called python, and apt.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v buildah > /dev/null || { echo "this needs buildah: apt-get install buildah" >&2; exit 2; }

scratch=$(mktemp -d)
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --storage-driver vfs --root "$scratch/storage" --runroot "$scratch/run" "$@"; }
clean() {
  buildah rm --all > /dev/null 2>&1 || true
  buildah rmi --all --force > /dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap clean EXIT

buildah build --format docker --file docker/Dockerfile --ignorefile docker/Dockerfile.dockerignore --tag murmuration:trial "$@" .
echo "the image takes $(buildah images --format '{{.Size}}' murmuration:trial)"
container=$(buildah from murmuration:trial)
inside() { echo "+ $*"; buildah run "$container" -- "$@"; }

inside id
inside python -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
inside murmur --help
inside murmur doctor --help
# A node without configuration says what is missing and is not started again: the status is that of the time-out.
status=0
inside timeout 60 python docker/start.py python neurons/miner.py || status=$?
[ "$status" = 124 ] || { echo "start.py ended with status $status, where it should have waited" >&2; exit 1; }
buildah config --workingdir /home/murmur "$container"
inside murmur localnet --rounds 1 --miners 2 --folder runs/trial --host 0.0.0.0 --port 8790
inside murmur explain miner-1 --run runs/trial
echo "the image works"
