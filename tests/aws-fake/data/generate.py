"""Regenerates the files of this directory from public packages. See README.md beside this file.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install botocore==1.44.5
  /tmp/venv/bin/pip download --no-deps moto==5.2.5 -d /tmp/moto && (cd /tmp/moto && unzip -q moto-*.whl 'moto/ec2/*')
  /tmp/venv/bin/python generate.py /tmp/moto PATH-OF/on-demand-prices.csv
"""
import csv, glob, gzip, json, os, re, sys

import botocore.loaders

HERE = os.path.dirname(os.path.abspath(__file__))
EC2_ACTIONS = """DescribeInstanceTypes DescribeInstanceTypeOfferings DescribeSubnets
DescribeSecurityGroups DescribeImages CreateLaunchTemplate DescribeLaunchTemplates
DeleteLaunchTemplate CreateFleet RunInstances DescribeInstances TerminateInstances CreateTags
DescribeInstanceStatus DescribeSpotPriceHistory DescribeCapacityReservations DescribePlacementGroups""".split()
OTHERS = {
    "iam": """GetInstanceProfile CreateInstanceProfile DeleteInstanceProfile AddRoleToInstanceProfile
        RemoveRoleFromInstanceProfile TagInstanceProfile ListInstanceProfiles
        CreateRole""",
    "sts": "AssumeRoleWithWebIdentity",
    "ssm": "GetParameter",
    "sqs": "GetQueueUrl ReceiveMessage DeleteMessageBatch",
    "eks": "DescribeCluster",
    "pricing": "GetProducts",
    "arc-zonal-shift": "GetManagedResource",
}
LOADER = botocore.loaders.Loader()


def service(name):
    return LOADER.load_service_model(name, "service-2")


def tree(model, shape, naming, seen=()):
    """A shape as nested JSON: {"s": members, "r": required}, {"l": element}, {"m": value}, {"e": enum}, or a scalar's letter."""
    s = model["shapes"][shape]
    kind = s["type"]
    if shape in seen:
        return "a"
    seen = seen + (shape,)
    if kind == "structure":
        members = {naming(n, m): tree(model, m["shape"], naming, seen) for n, m in s["members"].items()}
        out = {"s": members}
        if s.get("required"):
            out["r"] = [naming(n, s["members"][n]) for n in s["required"]]
        return out
    if kind == "list":
        return {"l": tree(model, s["member"]["shape"], naming, seen)}
    if kind == "map":
        return {"m": tree(model, s["value"]["shape"], naming, seen)}
    if kind == "string" and 0 < len(s.get("enum", [])) <= 40 and shape != "InstanceType":
        return {"e": s["enum"]}
    return {"string": "s", "integer": "i", "long": "i", "boolean": "b", "timestamp": "t", "double": "d", "float": "d", "blob": "x"}[kind]


def ec2_request(name, member):
    if "queryName" in member:
        return member["queryName"]
    location = member.get("locationName", name)
    return location[0].upper() + location[1:]


def response(name, member):
    return member.get("locationName", name)


def shapes():
    requests, responses = {}, {}
    ec2 = service("ec2")
    jobs = [("ec2", ec2, EC2_ACTIONS, ec2_request)]
    jobs += [(n, service(n), v.split(), lambda n, m: m.get("locationName", n)) for n, v in OTHERS.items()]
    for name, model, actions, naming in jobs:
        for action in actions:
            op = model["operations"][action]
            if name in ("ec2", "iam", "sts"):
                requests[f"{name}:{action}"] = tree(model, op["input"]["shape"], naming) if "input" in op else {"s": {}}
            responses[f"{name}:{action}"] = tree(model, op["output"]["shape"], response) if "output" in op else {"s": {}}
    return requests, responses


def wire_names(model, shape, value):
    """The value with EC2's element names instead of the API's member names; members the API no longer has are dropped."""
    s = model["shapes"][shape]
    if s["type"] == "structure":
        return {m.get("locationName", n): wire_names(model, m["shape"], value[n])
                for n, m in s["members"].items() if n in value and value[n] is not None}
    if s["type"] == "list":
        return [wire_names(model, s["member"]["shape"], v) for v in value]
    if s["type"] == "float" and float(value).is_integer():
        return int(value)
    return value


def moto(path):
    ec2 = service("ec2")
    raw = json.load(gzip.open(os.path.join(path, "moto/ec2/resources/instance_types.json.gz")))
    types = [wire_names(ec2, "InstanceTypeInfo", raw[name]) for name in sorted(raw)]
    base = os.path.join(path, "moto/ec2/resources/instance_type_offerings")
    source = open(os.path.join(path, "moto/ec2/models/availability_zones_and_regions.py")).read()
    ids = dict(re.findall(r'name="([a-z0-9-]+)", zone_id="([a-z0-9-]+)"', source.replace("\n", " ")))
    # moto spells some zones over several lines
    ids.update(re.findall(r'name="([a-z0-9-]+)",\s*zone_id="([a-z0-9-]+)"', source))
    regions = {}
    for file in sorted(glob.glob(f"{base}/availability-zone/*.json.gz")):
        region = os.path.basename(file)[:-8]
        rows = json.load(gzip.open(file))
        by_id = json.load(gzip.open(file.replace("/availability-zone/", "/availability-zone-id/")))
        zones = sorted({r["Location"] for r in rows})
        have, have_id = {}, {}
        for r in rows: have.setdefault(r["Location"], set()).add(r["InstanceType"])
        for r in by_id: have_id.setdefault(r["Location"], set()).add(r["InstanceType"])
        # Zone names are an account's own shuffle of the zone ids; moto's two lists agree, so equal sets identify the zone.
        free, pairs = set(have_id), []
        for z in zones:
            known = ids.get(z)
            best = known if known in free else max(sorted(free), key=lambda i: len(have[z] & have_id[i]) - len(have[z] ^ have_id[i]))
            free.discard(best)
            pairs.append([z, best])
        masks = {}
        for i, z in enumerate(zones):
            for t in have[z]: masks[t] = masks.get(t, 0) | 1 << i
        groups = {}
        for t, m in masks.items(): groups.setdefault(m, []).append(t)
        regions[region] = {"zones": pairs, "offered": {str(m): " ".join(sorted(ts)) for m, ts in sorted(groups.items())}}
    return types, regions


def write_gz(name, value):
    data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0))


def main():
    types, regions = moto(sys.argv[1])
    write_gz("instance-types.json.gz", types)
    write_gz("offerings.json.gz", regions)
    prices = {}
    with open(sys.argv[2]) as f:
        for row in csv.DictReader(line for line in f if not line.startswith("#")):
            prices.setdefault(row["region"], {})[row["instance_type"]] = float(row["price_per_hour"])
    write_gz("prices.json.gz", prices)
    requests, responses = shapes()
    write_gz("requests.json.gz", requests)
    write_gz("responses.json.gz", responses)


main()
