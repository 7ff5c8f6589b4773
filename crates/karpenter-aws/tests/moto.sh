#!/usr/bin/env bash
# Installs moto from PyPI where tests/ec2/second_opinion.rs finds it, to compare our stand-in for AWS with.
# The version is pinned: what differs from it is a reviewed list in that test.
set -euo pipefail
cd "$(dirname "$0")/../../.."

venv=target/tools/moto
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q 'moto[server,ec2,iam,sqs,ssm,eks,sts]==5.2.5'
