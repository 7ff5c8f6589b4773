#!/usr/bin/env bash
# A second opinion on the calls to AWS: installs moto from PyPI, starts it on a free port of loopback, and runs the tests
# of tests/ec2/second_opinion.rs against it. Arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/../../.."

venv=${MOTO_VENV:-target/tools/moto}
[ -x "$venv/bin/moto_server" ] || { python3 -m venv "$venv"; "$venv/bin/pip" install -q 'moto[server,ec2,iam,sqs,ssm,eks,sts]==5.2.5'; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$venv/bin/moto_server" -H 127.0.0.1 -p "$port" >/dev/null 2>&1 &
moto=$!
trap 'kill "$moto"' EXIT
until curl -fsS "http://127.0.0.1:$port/moto-api/data.json" >/dev/null 2>&1; do
  kill -0 "$moto" || { echo "moto did not start" >&2; exit 1; }
  sleep 0.2
done
MOTO_ENDPOINT="http://127.0.0.1:$port" cargo test "$@" -p karpenter-aws --test ec2 second_opinion -- --nocapture
