#!/bin/sh
# The browser tests want Chromium: Debian's, where this script may install it. Elsewhere they are skipped, and say so.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1 && exit 0
fi
echo "There is no Chromium, and it cannot be installed here: browser tests will be skipped."
