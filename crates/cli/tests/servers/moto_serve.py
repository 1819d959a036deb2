"""S3 by moto, with signatures checked: moto_serve.py PORT KEYS.

Answers on 127.0.0.1:PORT until it is killed. There is one bucket, `load`, and one user who may do everything in it; the user's id and secret are
written into the file KEYS, a line each, when all is ready. A request signed by anybody else, or with another secret, is refused. One request is
answered at a time: that a conditional put is one step is what S3 promises, and what moto does in several."""
import json, os, sys, threading

os.environ.update(AWS_ACCESS_KEY_ID="setup", AWS_SECRET_ACCESS_KEY="setup", AWS_DEFAULT_REGION="us-east-1")

import boto3
from moto import settings
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

port, file = int(sys.argv[1]), sys.argv[2]
server = make_server("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=False)
serving = threading.Thread(target=server.serve_forever)
serving.start()
iam, s3 = (boto3.client(service, endpoint_url=f"http://127.0.0.1:{port}") for service in ("iam", "s3"))
iam.create_user(UserName="shard")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="shard", PolicyName="s3", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="shard")["AccessKey"]
s3.create_bucket(Bucket="load")
# From here on every request is held to its signature and its user's policy.
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
with open(file + ".part", "w") as keys:
    keys.write(f"{key['AccessKeyId']}\n{key['SecretAccessKey']}\n")
os.rename(file + ".part", file)
serving.join()
