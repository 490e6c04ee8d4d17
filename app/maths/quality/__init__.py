"""The quality of translations: metrics, intervals and estimates."""
