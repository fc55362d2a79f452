#!/bin/sh
# Create the bucket and its three accounts on a MinIO server. A second run changes nothing.
set -eu
mc alias set store "$S3_ENDPOINT" "$MINIO_ROOT_USER" "$MINIO_ROOT_PASSWORD" >/dev/null
mc mb --ignore-existing store/dpca
add() {
    mc admin policy create store "dpca-$1" "/policies/$1.json"
    mc admin user add store "$2" "$3"
    # Attaching a policy again is an error, so check only that the account has it.
    mc admin policy attach store "dpca-$1" --user "$2" >/dev/null 2>&1 || true
    mc admin user info store "$2" | grep -q "dpca-$1"
}
add curator "$S3_CURATOR_KEY" "$S3_CURATOR_SECRET"
add worker "$S3_WORKER_KEY" "$S3_WORKER_SECRET"
add consumer "$S3_CONSUMER_KEY" "$S3_CONSUMER_SECRET"
