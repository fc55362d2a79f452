#!/bin/sh
# Append to each tag in deployments/images.env the digest that its registry reports now. The tags stay. DPCA_IMAGE is
# not changed, since its digest exists only after you push it. Either every image is pinned or the file is unchanged.
set -eu
file=${1:-$(dirname "$0")/images.env}
if ! command -v docker >/dev/null; then
    echo "docker is not installed, but docker buildx reads the digests; $file is unchanged. Run this where docker is installed." >&2
    exit 1
fi
pinned=$(mktemp "$file.XXXXXX")
trap 'rm -f "$pinned"' EXIT
while IFS= read -r line; do
    case $line in
        '' | '#'* | DPCA_IMAGE=*) ;;
        *)
            line=${line%@*}
            image=${line#*=}
            digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image" </dev/null 2>/dev/null) || digest=
            if ! printf '%s\n' "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}'; then
                echo "no registry reports a digest of $image; $file is unchanged. Run this where the registry is reachable." >&2
                exit 1
            fi
            line=$line@$digest
            ;;
    esac
    printf '%s\n' "$line" >>"$pinned"
done <"$file"
chmod 0644 "$pinned"
mv "$pinned" "$file"
