#!/bin/sh
# Asks the sample manual two questions; the second one starts from the saved session.
# Usage: demo.sh HIP    HIP: the command to run
set -e
hip=$1
manual=$(dirname "$0")/manual.pdf
echo '$ hip ask samples/manual.pdf "At which port are the controller'"'"'s web pages found?" --cite'
"$hip" ask "$manual" "At which port are the controller's web pages found?" --cite --max-new-tokens 60
echo
echo '$ hip ask --resume "What is the installer'"'"'s PIN at delivery?" --cite'
"$hip" ask --resume "What is the installer's PIN at delivery?" --cite --max-new-tokens 60
