#!/bin/sh
# Installs a service of rollmesh on this machine, as root, in a clone with the built program or with the program in /usr/local/bin:
#   install.sh hub NAME              a hub that others reach by this name. Creates the workers' token in /etc/rollmesh/worker.token and
#                                    an operator's in /etc/rollmesh/operator.token, and prints the fingerprint of its certificate
#   install.sh workers HUB SHA256    a worker for each CPU of this machine, with the token in /etc/rollmesh/worker.token
# Installs below DESTDIR, if that is set. A second time it keeps the tokens.
set -eu
folder=$(dirname "$0")
etc=${DESTDIR-}/etc/rollmesh
state=${DESTDIR-}/var/lib/rollmesh
rollmesh=${DESTDIR-}/usr/local/bin/rollmesh

create_token() {
    [ ! -e "$etc/$1.token" ] || return 0
    token=$("$rollmesh" tokens create --role "$1" --file "$state/tokens.json")
    echo "$token" | install -D -m 600 /dev/stdin "$etc/$1.token"
}

start() {
    install -D -m 644 "$folder/$1" "${DESTDIR-}/etc/systemd/system/$1"
    systemctl daemon-reload
    systemctl enable "$1"
    systemctl restart "$1"
}

built=$folder/../../target/dist/rollmesh
[ ! -e "$built" ] || install -D "$built" "$rollmesh"
case "$#-${1-}" in
2-hub)
    install -d -m 700 "$state"
    create_token worker
    create_token operator
    echo "ROLLMESH_PUBLIC_HOST=$2" | install -D -m 644 /dev/stdin "$etc/hub.env"
    start rollmesh-hub.service
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        ! journalctl --unit rollmesh-hub --boot --quiet --output cat --lines 1 --grep fingerprint || exit 0
        sleep 1
    done
    echo "the hub has not started: systemctl status rollmesh-hub" >&2
    exit 1
    ;;
3-workers)
    [ -e "$etc/worker.token" ] || { echo "$etc/worker.token is missing: copy it from the hub's machine" >&2; exit 1; }
    printf 'ROLLMESH_HUB=%s\nROLLMESH_TRUST=--tls-fingerprint=%s\n' "$2" "$3" | install -D -m 644 /dev/stdin "$etc/worker.env"
    start rollmesh-worker.service
    ;;
*)
    echo "usage: $0 hub NAME | workers HUB SHA256" >&2
    exit 2
    ;;
esac
