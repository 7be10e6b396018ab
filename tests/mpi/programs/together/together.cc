// MPI, CORBA (omniORB) and SOAP (gSOAP) at the same time in each of two processes: together PARTS SECONDS, PARTS of `mpi,corba,soap`.
// Rank 1 serves, rank 0 measures, each part in a thread of its own and MPI in the main one. Every answer is checked. Rank 0 prints
// `PART MIB_PER_S` (both ways counted) and `ok`.
#include <arpa/inet.h>
#include <mpi.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "Parts.hh"
#include "parts.nsmap"
#include "soapH.h"

using Clock = std::chrono::steady_clock;

constexpr int kBlock = 1 << 20, kWindow = 8, kText = 1 << 16;
constexpr int kBlocks = 1, kAnswer = 2, kAddresses = 3, kBye = 4;

static void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

static double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// --- MPI: windows of blocks one way, a word back. The first word of a window says whether it is the last.

struct Window {
  std::vector<std::vector<int>> blocks{kWindow, std::vector<int>(kBlock / sizeof(int))};
  MPI_Request requests[kWindow];

  void all(bool sends, int peer) {
    for (int i = 0; i < kWindow; i++) {
      if (sends)
        MPI_Isend(blocks[i].data(), kBlock, MPI_BYTE, peer, kBlocks, MPI_COMM_WORLD, &requests[i]);
      else
        MPI_Irecv(blocks[i].data(), kBlock, MPI_BYTE, peer, kBlocks, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
  }
};

static double send_windows(double seconds) {
  Window window;
  for (int i = 0; i < kWindow; i++)
    for (size_t k = 0; k < window.blocks[i].size(); k++) window.blocks[i][k] = static_cast<int>(k * 2654435761u) + i;
  const auto start = Clock::now();
  for (int round = 1, last = 0;; round++) {
    last = since(start) >= seconds;
    for (auto& block : window.blocks) block[1] = block.back() = round;
    window.blocks[0][0] = last;
    window.all(true, 1);
    int answer = 0;
    MPI_Recv(&answer, 1, MPI_INT, 1, kAnswer, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    require(answer == round, "answer of MPI");
    if (last) return 1.0 * round * kWindow * kBlock / (1 << 20) / since(start);
  }
}

static void receive_windows() {
  Window window;
  for (int round = 1, last = 0; !last; round++) {
    window.all(false, 0);
    last = window.blocks[0][0];
    for (int i = 0; i < kWindow; i++) {
      const auto& block = window.blocks[i];
      require(block[1] == round && block.back() == round, "order of blocks");
      // Every word of some.
      for (size_t k = 2; (round + i) % 64 == 0 && k + 1 < block.size(); k++)
        require(block[k] == static_cast<int>(k * 2654435761u) + i, "words of a block");
    }
    MPI_Send(&round, 1, MPI_INT, 0, kAnswer, MPI_COMM_WORLD);
  }
}

// --- CORBA: a sequence there and back.

class Peer : public POA_Parts::Peer {
 public:
  void turn(Parts::Bytes& data) override {
    for (CORBA::ULong i = 0; i < data.length(); i += 4096) data[i] ^= 0xff;
  }
};

static std::string serve_corba(CORBA::ORB_ptr orb) {
  CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
  PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
  PortableServer::Servant_var<Peer> servant = new Peer;
  PortableServer::ObjectId_var id = poa->activate_object(servant);
  CORBA::Object_var reference = poa->id_to_reference(id);
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
  CORBA::String_var text = orb->object_to_string(reference);
  return static_cast<const char*>(text);
}

static double call_corba(CORBA::ORB_ptr orb, const std::string& reference, double seconds) {
  CORBA::Object_var object = orb->string_to_object(reference.c_str());
  Parts::Peer_var peer = Parts::Peer::_narrow(object);
  require(!CORBA::is_nil(peer), "reference");
  Parts::Bytes data;
  data.length(kBlock);
  for (int i = 0; i < kBlock; i++) data[i] = i % 251;
  long calls = 0;
  const auto start = Clock::now();
  for (; since(start) < seconds; calls++) {
    const CORBA::Octet flips = calls % 2 ? 0 : 0xff;
    peer->turn(data);
    require(data.length() == kBlock, "length of a sequence");
    for (int i = 0; i < kBlock; i += 1024)
      require(data[i] == (i % 251 ^ (i % 4096 ? 0 : flips)), "data of a sequence");
  }
  return 2.0 * calls / since(start);
}

// --- SOAP: a text there and back.

static std::atomic<bool> soap_over{false};

int ns__turn(struct soap* soap, char* text, char*& turned) {
  turned = soap_strdup(soap, text);
  std::reverse(turned, turned + std::strlen(turned));
  return SOAP_OK;
}

int ns__end(struct soap*, int code, int& ended) {
  soap_over = true;
  ended = code;
  return SOAP_OK;
}

static void serve_soap(struct soap* soap) {
  while (!soap_over) {
    require(soap_valid_socket(soap_accept(soap)), "accept of SOAP");
    soap_serve(soap);
    soap_destroy(soap);
    soap_end(soap);
  }
}

static double call_soap(const std::string& at, double seconds) {
  struct soap* soap = soap_new1(SOAP_IO_KEEPALIVE);
  std::string text(kText, 'a');
  for (size_t i = 0; i < text.size(); i++) text[i] = 'a' + i % 23;
  long calls = 0;
  const auto start = Clock::now();
  for (; since(start) < seconds; calls++) {
    char* turned = nullptr;
    if (soap_call_ns__turn(soap, at.c_str(), "", text.data(), turned) != SOAP_OK) {
      soap_print_fault(soap, stderr);
      require(false, "call of SOAP");
    }
    std::reverse(text.begin(), text.end());
    require(text == turned, "text of SOAP");
    soap_destroy(soap);
    soap_end(soap);
  }
  const double rate = 2.0 * calls * kText / (1 << 20) / since(start);
  soap->keep_alive = 0;
  int code = 0;
  require(soap_call_ns__end(soap, at.c_str(), "", 7, code) == SOAP_OK && code == 7, "end of SOAP");
  soap_destroy(soap);
  soap_end(soap);
  soap_free(soap);
  return rate;
}

// --- The two ranks.

static void send_text(const std::string& text) {
  MPI_Send(text.c_str(), text.size() + 1, MPI_CHAR, 0, kAddresses, MPI_COMM_WORLD);
}

static std::string receive_text() {
  MPI_Status status;
  int length = 0;
  MPI_Probe(1, kAddresses, MPI_COMM_WORLD, &status);
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string text(length, 0);
  MPI_Recv(text.data(), length, MPI_CHAR, 1, kAddresses, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  text.resize(length - 1);
  return text;
}

static void serve(CORBA::ORB_ptr orb, bool mpi, bool soap) {
  send_text(serve_corba(orb));
  struct soap* server = soap_new1(SOAP_IO_KEEPALIVE);
  require(soap_valid_socket(soap_bind(server, "127.0.0.1", 0, 10)), "bind of SOAP");
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  require(getsockname(server->master, reinterpret_cast<sockaddr*>(&bound), &length) == 0, "name of a socket");
  send_text("http://127.0.0.1:" + std::to_string(ntohs(bound.sin_port)));
  std::thread thread([&] {
    if (soap) serve_soap(server);
  });
  if (mpi) receive_windows();
  // The others may go on for a while, and are not to be held up by a rank that looks for messages all the time.
  for (int here = 0; !here; usleep(2000)) MPI_Iprobe(0, kBye, MPI_COMM_WORLD, &here, MPI_STATUS_IGNORE);
  MPI_Recv(nullptr, 0, MPI_CHAR, 0, kBye, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  thread.join();
  soap_destroy(server);
  soap_end(server);
  soap_free(server);
}

static void measure(CORBA::ORB_ptr orb, bool mpi, bool corba, bool soap, double seconds) {
  const std::string reference = receive_text(), at = receive_text();
  std::printf("pid %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  std::map<std::string, double> rates;
  double by_corba = 0, by_soap = 0;
  std::thread first([&] {
    if (corba) by_corba = call_corba(orb, reference, seconds);
  });
  std::thread second([&] {
    if (soap) by_soap = call_soap(at, seconds);
  });
  if (mpi) std::printf("mpi %.1f\n", send_windows(seconds));
  first.join();
  second.join();
  MPI_Send(nullptr, 0, MPI_CHAR, 1, kBye, MPI_COMM_WORLD);
  if (corba) std::printf("corba %.1f\n", by_corba);
  if (soap) std::printf("soap %.1f\n", by_soap);
}

static bool loaded(const char* library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(library) != std::string::npos) return true;
  return false;
}

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const char* options[][2] = {{"giopMaxMsgSize", "16777216"}, {"endPoint", "giop:tcp:127.0.0.1:"}, {nullptr, nullptr}};
  CORBA::ORB_var orb = CORBA::ORB_init(argc, argv, "omniORB4", options);
  require(argc == 3, "arguments");
  const std::string parts = argv[1];
  auto has = [&](const char* part) { return parts.find(part) != std::string::npos; };
  try {
    if (rank == 1)
      serve(orb, has("mpi"), has("soap"));
    else
      measure(orb, has("mpi"), has("corba"), has("soap"), std::atof(argv[2]));
    MPI_Barrier(MPI_COMM_WORLD);
    orb->destroy();
  } catch (const CORBA::Exception& e) {
    require(false, e._name());
  }
  if (rank == 0 && loaded("libmadrigal-fi")) std::printf("loaded libmadrigal-fi\n");
  if (rank == 0) std::printf("ok\n");
  MPI_Finalize();
  return 0;
}
