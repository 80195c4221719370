"""Files of docker/. The folder has another name, because a package `docker` would hide the Docker SDK.

compose-spec.json is the Compose Specification's own JSON schema, unchanged, under its licence (compose-spec.LICENSE).
"""
