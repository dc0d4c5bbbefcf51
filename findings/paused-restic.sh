#!/usr/bin/env bash
# restic 0.14.0 (Debian 12) and 0.18.0 (Debian 13), a local repository with one snapshot. A backs up the
# same data and is stopped (SIGSTOP) once it holds its lock and has read the index. B takes A for dead:
# unlock --remove-all, forget --prune of the one snapshot. Then A is resumed.
#
# Seen with both:
#   B        exit 0 three times, the data is pruned
#   A        exit 0, "snapshot ... saved": its lock is looked at by the refreshes alone, every 5 minutes
#   check    exit 1: the new snapshot needs data that was pruned
#
# Fails if A's backup is refused, or the check finds no error.
set -euo pipefail
dir=$(mktemp -d)
a=
trap '[ -z "$a" ] || kill -KILL "$a" 2>"$dir/kill" || true; rm -rf "$dir"' EXIT
cd "$dir"
mkdir -p sources lists/partial cache/archives/partial 12 13
awk -v RS= 'NR == 1' /etc/apt/sources.list.d/debian.sources | sed 's/^Suites:.*/Suites: trixie/' >sources/13.sources
trixie=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$dir/sources"
  -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache")
(cd 12 && apt-get download restic=0.14.0-1+b5 >out 2>&1 && dpkg -x restic_*.deb .)
apt-get "${trixie[@]}" update >out 2>&1
(cd 13 && apt-get "${trixie[@]}" download restic=0.18.0-1+b4 >out 2>&1 && dpkg -x restic_*.deb .)

export RESTIC_PASSWORD=example RESTIC_CACHE_DIR=$dir/caches RESTIC_PROGRESS_FPS=0.1
for restic in "$dir"/1[23]/usr/bin/restic; do
  "$restic" version
  export RESTIC_REPOSITORY=$restic.repository
  "$restic" init >out
  head -c 3000000 /dev/urandom >data
  "$restic" backup --stdin <data >out
  mkfifo input
  : >a.out
  "$restic" backup --verbose --stdin <input >a.out 2>&1 &
  a=$!
  exec 3>input
  until grep -q 'start backup' a.out; do kill -0 "$a"; sleep 0.05; done
  kill -STOP "$a"
  "$restic" unlock --remove-all
  "$restic" forget --prune latest >b.out
  grep 'total prune\|remaining' b.out
  kill -CONT "$a"
  cat data >&3
  exec 3>&-
  wait "$a"
  a=
  grep saved a.out
  rm input
  if "$restic" check >check.out 2>&1; then exit 1; fi
  grep -m 1 'not found' check.out
  tail -n 1 check.out
done
