#!/bin/sh
# Create two certificate authorities and the certificates that they sign, in a folder (deployments/tls):
#   ca.pem        signs cert.pem, for Dask's scheduler, workers and clients; ca.key gives access to cluster and rows
#   services.pem  signs postgres.pem, s3.pem and prefect.pem, each for the host names of one server, not for clients
# Keep ca.key and services.key away from the servers: no deployment reads them.
set -eu
folder=${1:-$(dirname "$0")/tls}
days=${DAYS:-365}
umask 077
mkdir -p "$folder"
cd "$folder"
if [ -e ca.pem ]; then
    echo "$folder already holds certificates; remove them to create new ones." >&2
    exit 1
fi

authority() {  # NAME SUBJECT
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days "$days" -subj "/CN=$2" \
        -addext "keyUsage=critical,keyCertSign" -keyout "$1.key" -out "$1.pem" 2>/dev/null
}

certificate() {  # AUTHORITY SUBJECT CERTIFICATE KEY EXTENSION...
    signer=$1 subject=$2 made=$3 key=$4
    shift 4
    printf '%s\n' basicConstraints=critical,CA:false subjectKeyIdentifier=hash authorityKeyIdentifier=keyid "$@" >extensions
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=$subject" \
        -keyout "$key" -out request 2>/dev/null
    openssl x509 -req -in request -CA "$signer.pem" -CAkey "$signer.key" -CAcreateserial -days "$days" \
        -extfile extensions -out "$made" 2>/dev/null
    rm request extensions
}

server() {  # NAME HOST...
    name=$1 names=DNS:localhost,IP:127.0.0.1
    for host in "$@"; do
        names=$names,DNS:$host,DNS:$host.dpca,DNS:$host.dpca.svc,DNS:$host.dpca.svc.cluster.local
    done
    certificate services "$name" "$name.pem" "$name.key" extendedKeyUsage=serverAuth "subjectAltName=$names"
}

authority services "dpca services authority"
server postgres
server s3 object-store
server prefect
authority ca "dpca cluster authority"
certificate ca dpca cert.pem key.pem extendedKeyUsage=serverAuth,clientAuth
# Containers read their files as members of group 10001.
read="ca.pem cert.pem key.pem services.pem postgres.pem postgres.key s3.pem s3.key prefect.pem prefect.key"
chgrp 10001 $read 2>/dev/null \
    || echo "for compose, run as root: cd $folder && chgrp 10001 $read; Kubernetes needs nothing more." >&2
chmod 0640 $read
