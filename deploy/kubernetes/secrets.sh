#!/bin/sh
# Creates the secrets that rollmesh.yaml needs: `rollmesh-hub`, with a certificate and hashes of tokens, and
# `rollmesh-worker`, with the workers' token and the certificate. Writes the operator's token to ./operator.token.
# The certificate is valid for 365 days: `secrets.sh --renew` replaces it in both secrets, keeps the tokens, and restarts the pods.
# Needs rollmesh, openssl and kubectl; further arguments go to kubectl, for example --namespace.
set -eu
umask 077
renews=
if [ "${1-}" = --renew ]; then
    renews=yes
    shift
elif [ -e operator.token ]; then
    echo "operator.token exists, so the secrets do; --renew replaces their certificate" >&2
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj /CN=rollmesh-hub \
    -addext subjectAltName=DNS:rollmesh-hub,DNS:localhost -addext basicConstraints=critical,CA:FALSE \
    -keyout "$folder/tls.key" -out "$folder/tls.crt" 2> "$folder/openssl.log" || { cat "$folder/openssl.log" >&2; exit 1; }
if [ -n "$renews" ]; then
    # Keys of a secret that are not named here stay.
    kubectl create secret generic rollmesh-hub "$@" --dry-run=client -o yaml \
        --from-file="$folder/tls.crt" --from-file="$folder/tls.key" | kubectl apply "$@" -f -
    kubectl create secret generic rollmesh-worker "$@" --dry-run=client -o yaml --from-file="$folder/tls.crt" | kubectl apply "$@" -f -
    kubectl rollout restart "$@" deployment/rollmesh-hub deployment/rollmesh-worker
    exit
fi
rollmesh tokens create --role worker --file "$folder/tokens.json" > "$folder/worker.token"
rollmesh tokens create --role operator --file "$folder/tokens.json" > "$folder/operator.token"
kubectl create secret generic rollmesh-hub "$@" --from-file="$folder/tokens.json" \
    --from-file="$folder/tls.crt" --from-file="$folder/tls.key"
kubectl create secret generic rollmesh-worker "$@" --from-file="$folder/worker.token" --from-file="$folder/tls.crt"
mv "$folder/operator.token" operator.token
