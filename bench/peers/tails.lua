-- For wrk: how long the slowest of a hundred and of a thousand requests took.
function done(_, latency, _)
  io.write(string.format("tails: %.1f %.1f us\n", latency:percentile(99), latency:percentile(99.9)))
end
