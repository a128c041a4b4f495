"""Jobs that move messages between topics and what Spark reads and writes. jobs/ starts them."""
