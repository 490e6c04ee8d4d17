#!/usr/bin/env bash
# Clones this checkout into a new folder and runs the README's first command there.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet "$source" "$folder/anchorage"
make -C "$folder/anchorage" demo
