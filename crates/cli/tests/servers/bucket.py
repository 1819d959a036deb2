"""What lies in moto's bucket, read by Amazon's own library: bucket.py PORT ID SECRET.

For each prefix on a line of stdin a line of JSON: every key that begins with it, and its bytes in hexadecimal."""
import json, sys

import boto3

port, key, secret = sys.argv[1:4]
s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret)
for prefix in sys.stdin:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="load", Prefix=prefix.strip())
    keys = [one["Key"] for page in pages for one in page.get("Contents", [])]
    bodies = {}
    for key in keys:
        try:
            bodies[key] = s3.get_object(Bucket="load", Key=key)["Body"].read().hex()
        except s3.exceptions.NoSuchKey:
            pass  # taken away since it was listed
    print(json.dumps(bodies), flush=True)
