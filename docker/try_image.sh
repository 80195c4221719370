#!/usr/bin/env bash
# Builds both images of the Dockerfile and runs what is in them, without a Docker engine: by buildah, as root or with
# subordinate user ids. Takes ten minutes and 10 GB of disk below $TMPDIR, 50 GB
# where the kernel can't stack folders (a container in a container), and leaves neither images nor files behind.
#
#   docker/try_image.sh [OPTION OF `buildah build`]...       # --build-arg DEVICE=cuda, --build-arg PYTHON=.., --volume, ..
#
# Where no registry is in reach, --build-arg PYTHON names a base image of one's own, archives included: it needs Python 3.11 with pip,
# called python, and apt.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v buildah > /dev/null || { echo "this needs buildah: apt-get install buildah" >&2; exit 2; }

scratch=$(mktemp -d)
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --storage-driver "$driver" --root "$scratch/storage" --runroot "$scratch/run" "$@"; }
# Where the kernel does not stack folders for us, every layer is a whole copy of the one before.
driver=overlay
buildah info > /dev/null 2>&1 || { driver=vfs; rm -rf "$scratch"/*; }
clean() {
  buildah rm --all > /dev/null 2>&1 || true
  buildah rmi --all --force > /dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap clean EXIT

# open_image TARGET [OPTION]...: build it, and a container of it.
open_image() {
  local target=$1
  shift
  buildah build --format docker --file docker/Dockerfile --target "$target" \
    --layers --tag "murmuration:$target" "$@" .
  echo "the image $target takes $(buildah images --format '{{.Size}}' "murmuration:$target")"
  container=$(buildah from "murmuration:$target")
}
inside() { echo "+ $*"; buildah run "$container" -- "$@"; }

open_image node "$@"
inside id
inside python -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
inside murmur --help
inside murmur doctor --help
# A node without configuration says what is missing and is not started again: the status is that of the time-out.
status=0
inside timeout 60 python docker/start.py python neurons/miner.py || status=$?
[ "$status" = 124 ] || { echo "start.py ended with status $status, where it should have waited" >&2; exit 1; }
# A compiler is there for Triton alone, and the S3 server for the local network alone; pip is for nobody.
inside sh -c '! command -v g++ && ! command -v weed && ! /opt/venv/bin/python -m pip'
# Only the last layers, of megabytes, are other ones after a change of the sources.
inside du -sxm /opt/venv /app
open_image localnet "$@"
buildah config --workingdir /home/murmur "$container"
inside murmur localnet --rounds 1 --miners 2 --folder runs/trial --host 0.0.0.0 --port 8790
inside murmur explain miner-1 --run runs/trial
echo "the images work"
