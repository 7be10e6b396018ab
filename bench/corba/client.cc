// Calls a Bench::Peer for some seconds: client REFERENCE (call | inout | bulk) SECONDS. Prints microseconds per call for `call`, MiB/s
// for the others (both ways counted for `inout`).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "Bench.hh"

using Clock = std::chrono::steady_clock;

static double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

static void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(2);
}

static double call(Bench::Peer_ptr peer, double seconds) {
  long calls = 0;
  const auto start = Clock::now();
  while (since(start) < seconds)
    for (int i = 0; i < 32; i++, calls++) require(peer->next(calls) == calls + 1, "answer");
  return since(start) * 1e6 / calls;
}

static double inout(Bench::Peer_ptr peer, double seconds) {
  Bench::Bytes data;
  data.length(1 << 20);
  std::memset(data.get_buffer(), 0x5a, data.length());
  long calls = 0;
  const auto start = Clock::now();
  for (; since(start) < seconds; calls++) {
    const CORBA::Octet first = data[0];
    peer->turn(data);
    require(data.length() == 1 << 20 && data[0] == (first ^ 0xff) && data[data.length() - 1] == 0x5a, "data");
  }
  return 2.0 * calls / since(start);
}

static double bulk(Bench::Peer_ptr peer, double seconds) {
  Bench::Bytes data;
  data.length(32 << 20);
  std::memset(data.get_buffer(), 0x5a, data.length());
  long calls = 0;
  const auto start = Clock::now();
  for (; since(start) < seconds; calls++) require(peer->take(data) == 32 << 20, "length");
  return 32.0 * calls / since(start);
}

int main(int argc, char** argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    require(argc == 4, "arguments");
    CORBA::Object_var object = orb->string_to_object(argv[1]);
    Bench::Peer_var peer = Bench::Peer::_narrow(object);
    require(!CORBA::is_nil(peer), "reference");
    const double seconds = std::atof(argv[3]);
    const char mode = argv[2][0];
    auto measure = mode == 'c' ? call : mode == 'i' ? inout : bulk;
    measure(peer, seconds / 5);
    std::printf("%.3f\n", measure(peer, seconds));
    orb->destroy();
  } catch (const CORBA::Exception& e) {
    std::fprintf(stderr, "%s\n", e._name());
    return 1;
  }
  return 0;
}
