#!/bin/sh
# Make an authority and one certificate for Dask's scheduler, workers and clients, in a folder (deployments/tls).
# Whoever holds cert.pem and key.pem may join the cluster and read what it computes; ca.key stays with the operator.
set -eu
folder=${1:-$(dirname "$0")/tls}
days=${DAYS:-365}
umask 077
mkdir -p "$folder"
cd "$folder"
if [ -e ca.pem ]; then
    echo "$folder holds certificates already; remove them to make others." >&2
    exit 1
fi
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days "$days" \
    -subj "/CN=dpca cluster authority" -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc \
    -subj "/CN=dpca" -keyout key.pem -out request.pem 2>/dev/null
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" -out cert.pem 2>/dev/null
rm request.pem
# The container's user, 10001, reads the three files that it is given, by its group.
chgrp 10001 ca.pem cert.pem key.pem 2>/dev/null \
    || echo "for compose, let root run: chgrp 10001 $folder/*.pem; Kubernetes needs nothing more." >&2
chmod 0640 ca.pem cert.pem key.pem
