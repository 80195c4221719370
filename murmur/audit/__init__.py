"""`murmur audit`: a validator's rounds, judged again."""
