"""What exports to Kafka and streams from Kafka share: the check of a cluster, and its errors."""
