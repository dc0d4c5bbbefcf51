#!/usr/bin/env bash
# borg 1.2.4 (Debian 12) and 1.4.5 (PyPI, built here: needs the headers of lz4, zstd, xxhash, acl and
# OpenSSL), a local repository with the archive "first". A creates an archive and is stopped (SIGSTOP)
# before its commit, while it reads its input. B takes A for dead: break-lock, create, delete of
# "first", compact. Then A is resumed.
#
# Seen with both:
#   B                  exit 0 four times, both times
#   A, stopped before  exit 2, nothing has changed: a transaction begins with a look at the lock
#   it had sent a byte
#   A, stopped after   exit 2, because its lock is not there to be released, but it has committed:
#   30 MB              "list" has "first" and "a", B's archive is gone; "check" exits with 1,
#                      "check --repair" brings B's back, and "first" and "a" are gone
#
# Fails if one of them differs.
set -euo pipefail
dir=$(mktemp -d)
a=
trap '[ -z "$a" ] || kill -KILL "$a" 2>"$dir/kill" || true; rm -rf "$dir"' EXIT
cd "$dir"
mkdir 1.2.4
(
  cd 1.2.4
  apt-get download borgbackup=1.2.4-1 python3-msgpack=1.0.3-2+b1 python3-packaging=23.0-1 \
    python3-pkg-resources >out 2>&1
  for package in *.deb; do dpkg -x "$package" .; done
)
pip install --quiet --root-user-action ignore --target 1.4.5 borgbackup==1.4.5 2>/dev/null
export BORG_BASE_DIR=$dir/home BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
borg_of() {
  case $1 in
  1.2.4) PYTHONPATH=$dir/1.2.4/usr/lib/python3/dist-packages /usr/bin/python3 -m borg "${@:2}" ;;
  1.4.5) PYTHONPATH=$dir/1.4.5 python3 -m borg "${@:2}" ;;
  esac
}
for version in 1.2.4 1.4.5; do
  borg() { borg_of "$version" "$@"; }
  echo "borg $version"
  for before in 0 30000000; do
    repository=$version-$before
    borg init --encryption none "$repository"
    head -c 3000000 /dev/urandom >data
    borg create "$repository::first" data
    mkfifo input
    borg create "$repository::a" - <input >a.out 2>&1 &
    a=$!
    exec 3>input
    until [ -e "$repository/lock.exclusive" ]; do kill -0 "$a"; sleep 0.05; done
    head -c "$before" /dev/urandom >&3
    process=$(pgrep -P "$a")
    kill -STOP "$process"
    borg break-lock "$repository"
    borg create "$repository::b" data
    borg delete "$repository::first"
    borg compact "$repository"
    kill -CONT "$process"
    exec 3>&-
    code=0
    wait "$a" || code=$?
    a=
    rm input
    checked=0
    list=$(borg list --short "$repository" | paste -sd ' ')
    borg check "$repository" >check.out 2>&1 || checked=$?
    BORG_CHECK_I_KNOW_WHAT_I_AM_DOING=YES borg check --repair "$repository" >repair.out 2>&1 
    after=$(borg list --short "$repository" | paste -sd ' ')
    seen="A $code, list: $list, check $checked, list after check --repair: $after"
    echo "  A had sent $before bytes: $seen"
    case $before in
    0) test "$seen" = 'A 2, list: b, check 0, list after check --repair: b' ;;
    *) test "$seen" = 'A 2, list: first a, check 1, list after check --repair: b' ;;
    esac
  done
done
