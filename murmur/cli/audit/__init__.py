"""`murmur audit`: re-evaluation of a validator's rounds."""
