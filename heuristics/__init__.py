"""The choice: which kernel and tile serve a call. Pure data; knows neither torch nor triton."""
