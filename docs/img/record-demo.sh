#!/usr/bin/env bash
# Records demo.svg, the picture of README: the lines of the demo as they come, with pauses of at most 0.8 s. Needs termtosvg (PyPI) and
# the playground: docs/img/record-demo.sh target/debug/karpenter-playground
set -euo pipefail
playground="$(realpath "$1")"
picture="$(dirname "$(realpath "$0")")/demo.svg"
folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
cd "$folder"
cat > play <<PLAY
#!/bin/sh
echo '$ cargo run -p karpenter-playground -- --demo'
"$playground" --demo 2>&1 | sed -u '1,/^ready/d'
PLAY
chmod +x play
# A terminal, whose input does not end.
mkfifo input
exec 3<> input
script --quiet --command "termtosvg '$picture' -g 120x32 -M 800 -D 6000 -t window_frame -c '$folder/play'" /dev/null <&3
