"""boto3 as an independent client: every call the stand-in answers, through AWS's own Python SDK. Usage: boto3_client.py URL"""

import base64
import json
import sys
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

URL = sys.argv[1]
CONFIG = Config(retries={"total_max_attempts": 1, "mode": "standard"})


def client(name, region="us-west-2"):
    return boto3.client(name, region_name=region, endpoint_url=URL, config=CONFIG,
                        aws_access_key_id="AKIATEST", aws_secret_access_key="secret")


def admin(**command):
    request = urllib.request.Request(URL + "/_admin", json.dumps(command).encode(), method="POST")
    return json.load(urllib.request.urlopen(request))


def refused(code, call, **params):
    try:
        call(**params)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
        assert error.response["ResponseMetadata"]["RequestId"]
        return error
    raise AssertionError(f"expected {code}")


def pages(ec2, call, **params):
    return ec2.get_paginator(call).paginate(**params).build_full_result()


ec2, iam, sqs, ssm = client("ec2"), client("iam"), client("sqs"), client("ssm")
admin(settings={"rate_limits": False, "pending_s": 0, "shutting_down_s": 0})

# --- catalogue
types = pages(ec2, "describe_instance_types", Filters=[
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
    {"Name": "supported-virtualization-type", "Values": ["hvm"]}])["InstanceTypes"]
assert len(types) > 1300, len(types)
m5 = next(t for t in types if t["InstanceType"] == "m5.large")
assert m5["VCpuInfo"]["DefaultVCpus"] == 2 and m5["MemoryInfo"]["SizeInMiB"] == 8192
assert m5["NetworkInfo"]["NetworkCards"][0]["BaselineBandwidthInGbps"] == 0.75
offerings = pages(ec2, "describe_instance_type_offerings", LocationType="availability-zone")["InstanceTypeOfferings"]
assert len(offerings) == 5070, len(offerings)
spot = pages(ec2, "describe_spot_price_history", ProductDescriptions=["Linux/UNIX"],
             InstanceTypes=["m5.large"])["SpotPriceHistory"]
assert len(spot) == 4 and 0 < float(spot[0]["SpotPrice"]) < 0.096
refused("InvalidInstanceType", ec2.describe_instance_types, InstanceTypes=["bogus.large"])

# --- network
subnets = pages(ec2, "describe_subnets", Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["test"]}])["Subnets"]
assert len(subnets) == 4
assert subnets[0]["AvailableIpAddressCount"] == 8187
groups = pages(ec2, "describe_security_groups", Filters=[{"Name": "group-name", "Values": ["no*"]}])["SecurityGroups"]
assert [g["GroupName"] for g in groups] == ["node"]
assert len(ec2.describe_availability_zones()["AvailabilityZones"]) == 4
assert pages(ec2, "describe_vpcs")["Vpcs"][0]["State"] == "available"
assert ec2.describe_placement_groups()["PlacementGroups"] == []
assert pages(ec2, "describe_capacity_reservations")["CapacityReservations"] == []

# --- images
path = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended/image_id"
ami = ssm.get_parameter(Name=path)["Parameter"]["Value"]
image = ec2.describe_images(ImageIds=[ami])["Images"][0]
assert image["Architecture"] == "x86_64" and image["ImageOwnerAlias"] == "amazon"
assert pages(ec2, "describe_images", Owners=["self"])["Images"] == []
refused("ParameterNotFound", ssm.get_parameter, Name="/aws/service/nothing")
many = ssm.get_parameters(Names=[path, "/nothing"])
assert many["InvalidParameters"] == ["/nothing"] and len(many["Parameters"]) == 1

# --- instance profile
tags = [{"Key": "kubernetes.io/cluster/test", "Value": "owned"}]
profile = iam.create_instance_profile(InstanceProfileName="p", Path="/karpenter/us-west-2/test/u/", Tags=tags)
assert profile["InstanceProfile"]["Arn"].endswith("/karpenter/us-west-2/test/u/p")
refused("EntityAlreadyExists", iam.create_instance_profile, InstanceProfileName="p")
iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="KarpenterNodeRole-test")
refused("LimitExceeded", iam.add_role_to_instance_profile, InstanceProfileName="p", RoleName="KarpenterNodeRole-test")
refused("DeleteConflict", iam.delete_instance_profile, InstanceProfileName="p")
for n in range(3):
    iam.create_instance_profile(InstanceProfileName=f"q{n}", Path="/karpenter/us-west-2/other/")
listed = iam.get_paginator("list_instance_profiles").paginate(PathPrefix="/karpenter/us-west-2/test/").build_full_result()
assert [p["InstanceProfileName"] for p in listed["InstanceProfiles"]] == ["p"]
listed = iam.get_paginator("list_instance_profiles").paginate(PathPrefix="/karpenter/").build_full_result()
assert len(listed["InstanceProfiles"]) == 4
assert iam.get_instance_profile(InstanceProfileName="p")["InstanceProfile"]["Roles"][0]["RoleName"] == "KarpenterNodeRole-test"
iam.tag_instance_profile(InstanceProfileName="p", Tags=[{"Key": "a", "Value": "b"}])
assert len(iam.list_instance_profile_tags(InstanceProfileName="p")["Tags"]) == 2
refused("NoSuchEntity", iam.get_role, RoleName="nobody")

# --- launch template and fleet
data = {
    "ImageId": ami,
    "UserData": base64.b64encode(b"#!/bin/bash\n").decode(),
    "IamInstanceProfile": {"Name": "p"},
    "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 40, "VolumeType": "gp3", "Encrypted": True}}],
    "NetworkInterfaces": [{"DeviceIndex": 0, "NetworkCardIndex": 0, "Groups": ["sg-00000000000000001"]}],
    "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
    "TagSpecifications": [{"ResourceType": "network-interface", "Tags": tags}],
    "CapacityReservationSpecification": {"CapacityReservationPreference": "none"},
}
template = ec2.create_launch_template(LaunchTemplateName="karpenter.k8s.aws/1", LaunchTemplateData=data, TagSpecifications=[
    {"ResourceType": "launch-template", "Tags": tags}])["LaunchTemplate"]
assert template["LatestVersionNumber"] == 1
refused("InvalidLaunchTemplateName.AlreadyExistsException", ec2.create_launch_template,
        LaunchTemplateName="karpenter.k8s.aws/1", LaunchTemplateData=data)
version = ec2.describe_launch_template_versions(LaunchTemplateName="karpenter.k8s.aws/1")["LaunchTemplateVersions"][0]
assert version["LaunchTemplateData"]["NetworkInterfaces"][0]["Groups"] == ["sg-00000000000000001"]
assert version["LaunchTemplateData"]["BlockDeviceMappings"] == data["BlockDeviceMappings"]


def fleet(kinds, **more):
    overrides = [{"InstanceType": t, "SubnetId": s["SubnetId"], "AvailabilityZone": s["AvailabilityZone"], "Priority": 1.0}
                 for t in kinds for s in subnets]
    request = dict(
        Type="instant",
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": {
            "LaunchTemplateName": "karpenter.k8s.aws/1", "Version": "$Latest"}, "Overrides": overrides}],
        TargetCapacitySpecification={"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "spot"},
        SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume", "fleet")])
    request.update(more)
    return ec2.create_fleet(**request)


answer = fleet(["m5.large", "m5.xlarge"])
ids = answer["Instances"][0]["InstanceIds"]
assert len(ids) == 2 and answer["Instances"][0]["Lifecycle"] == "spot" and answer["Errors"] == []
admin(ice=[{"type": "*", "zone": "*", "capacity_type": "spot"}])
answer = fleet(["m5.large"])
assert answer["Instances"] == [] and {e["ErrorCode"] for e in answer["Errors"]} == {"InsufficientInstanceCapacity"}
assert len(answer["Errors"]) == 4
admin(ice=[])
refused("DryRunOperation", fleet, kinds=["m5.large"], DryRun=True)
refused("DryRunOperation", ec2.run_instances, LaunchTemplate={"LaunchTemplateName": "karpenter.k8s.aws/1"}, MinCount=1,
        MaxCount=1, InstanceType="m5.large", DryRun=True, NetworkInterfaces=[
            {"DeviceIndex": 0, "SubnetId": subnets[0]["SubnetId"], "Groups": ["sg-00000000000000001"]}])
run = ec2.run_instances(ImageId=ami, MinCount=1, MaxCount=1, InstanceType="t3.micro", SubnetId=subnets[0]["SubnetId"])
assert run["Instances"][0]["State"]["Name"] == "pending"

# --- instances
found = pages(ec2, "describe_instances", Filters=[
    {"Name": "tag-key", "Values": ["kubernetes.io/cluster/test"]},
    {"Name": "instance-state-name", "Values": ["pending", "running"]}])["Reservations"]
instances = [i for r in found for i in r["Instances"]]
assert sorted(i["InstanceId"] for i in instances) == sorted(ids), instances
one = instances[0]
assert one["State"]["Name"] == "running" and one["InstanceLifecycle"] == "spot" and one["SpotInstanceRequestId"]
assert one["IamInstanceProfile"]["Arn"].endswith("/p") and one["SecurityGroups"][0]["GroupId"] == "sg-00000000000000001"
assert one["MetadataOptions"]["HttpTokens"] == "required"
ec2.create_tags(Resources=[ids[0]], Tags=[{"Key": "Name", "Value": "node-1"}])
one = ec2.describe_instances(InstanceIds=[ids[0]])["Reservations"][0]["Instances"][0]
assert {"Key": "Name", "Value": "node-1"} in one["Tags"]
refused("InvalidInstanceID.NotFound", ec2.create_tags, Resources=["i-00000000000000bad"], Tags=[{"Key": "a", "Value": "b"}])
refused("InvalidInstanceID.NotFound", ec2.describe_instances, InstanceIds=[ids[0], "i-00000000000000bad"])
admin(status={ids[0]: {"system_impaired_since": "2026-01-01T00:00:00Z", "events": [
    {"code": "instance-stop", "description": "The instance is running on degraded hardware", "not_before": "2026-12-01T00:00:00Z"}]}})
sick = pages(ec2, "describe_instance_status", Filters=[{"Name": "system-status.status", "Values": ["impaired"]}])["InstanceStatuses"]
assert [s["InstanceId"] for s in sick] == [ids[0]]
assert sick[0]["SystemStatus"]["Details"][0]["Status"] == "failed"
assert pages(ec2, "describe_instance_status", Filters=[{"Name": "event.code", "Values": ["instance-stop"]}])["InstanceStatuses"]

# --- queue
queue = sqs.get_queue_url(QueueName="test")["QueueUrl"]
refused("AWS.SimpleQueueService.NonExistentQueue", sqs.get_queue_url, QueueName="nothing")
sqs.purge_queue(QueueUrl=queue)
admin(interrupt_spot=[ids[1]])
messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=20,
                               AttributeNames=["SentTimestamp"])["Messages"]
event = json.loads(messages[0]["Body"])
assert event["detail-type"] == "EC2 Spot Instance Interruption Warning" and event["detail"]["instance-id"] == ids[1]
gone = sqs.delete_message_batch(QueueUrl=queue, Entries=[
    {"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)])
assert len(gone["Successful"]) == len(messages)
other = sqs.create_queue(QueueName="other", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
sqs.send_message(QueueUrl=other, MessageBody="hello")
assert sqs.get_queue_attributes(QueueUrl=other, AttributeNames=["All"])["Attributes"]["ApproximateNumberOfMessages"] == "1"
received = sqs.receive_message(QueueUrl=other)["Messages"][0]
sqs.delete_message(QueueUrl=other, ReceiptHandle=received["ReceiptHandle"])
assert "Messages" not in sqs.receive_message(QueueUrl=other)

# --- termination
ended = ec2.terminate_instances(InstanceIds=[ids[0]])["TerminatingInstances"][0]
assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == ("running", "shutting-down")
assert ec2.describe_instances(InstanceIds=[ids[0]])["Reservations"][0]["Instances"][0]["State"]["Name"] == "terminated"
ec2.delete_launch_template(LaunchTemplateName="karpenter.k8s.aws/1")
refused("InvalidLaunchTemplateName.NotFoundException", ec2.delete_launch_template, LaunchTemplateName="karpenter.k8s.aws/1")
refused("InvalidLaunchTemplateName.NotFoundException", fleet, kinds=["m5.large"])

# --- the other services
cluster = client("eks").describe_cluster(name="test")["cluster"]
assert cluster["kubernetesNetworkConfig"]["serviceIpv4Cidr"] == "10.100.0.0/16" and cluster["version"] == "1.34"
refused("ResourceNotFoundException", client("eks").describe_cluster, name="nothing")
sts = client("sts")
assert sts.get_caller_identity()["Account"] == "123456789012"
assert sts.assume_role_with_web_identity(RoleArn="arn:aws:iam::123456789012:role/x", RoleSessionName="karpenter",
                                         WebIdentityToken="token")["Credentials"]["SessionToken"]
pricing = client("pricing", "us-east-1")
query = dict(regionCode="us-west-2", preInstalledSw="NA", operatingSystem="Linux", capacitystatus="Used",
             marketoption="OnDemand", tenancy="Shared", productFamily="Compute Instance")
products = pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=[
    {"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in query.items()]).build_full_result()["PriceList"]
prices = {p["product"]["attributes"]["instanceType"]: p for p in map(json.loads, products)}
term = next(iter(prices["m5.large"]["terms"]["OnDemand"].values()))
assert float(next(iter(term["priceDimensions"].values()))["pricePerUnit"]["USD"]) == 0.096
assert len(prices) > 900, len(prices)
shift = client("arc-zonal-shift")
arn = "arn:aws:eks:us-west-2:123456789012:cluster/test"
refused("ResourceNotFoundException", shift.get_managed_resource, resourceIdentifier=arn)
admin(clusters=[{"name": "test", "version": "1.34", "endpoint": "https://x", "ca": "", "zonal_shift": True, "shifts": [
    {"away_from": "usw2-az1", "start": "2026-01-01T00:00:00Z", "expiry": "2100-01-01T00:00:00Z"}]}])
assert shift.get_managed_resource(resourceIdentifier=arn)["zonalShifts"][0]["awayFrom"] == "usw2-az1"

# --- faults
admin(faults=[{"action": "DescribeVpcs", "code": "RequestLimitExceeded", "status": 503}])
refused("RequestLimitExceeded", ec2.describe_vpcs)
admin(faults=[{"action": "GetParameter", "code": "ThrottlingException", "status": 400}])
refused("ThrottlingException", ssm.get_parameter, Name=path)
admin(settings={"denied": ["ec2:RunInstances"]})
refused("UnauthorizedOperation", ec2.run_instances, ImageId=ami, MinCount=1, MaxCount=1, InstanceType="t3.micro",
        SubnetId=subnets[0]["SubnetId"])
print("ok")
