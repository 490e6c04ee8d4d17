"""What the default search finds on judged collections, beside every other setting and peers."""
