// Serves one Bench::Peer and prints its reference.
#include <cstdio>
#include "Bench.hh"

class Peer : public POA_Bench::Peer {
 public:
  CORBA::Long next(CORBA::Long value) override { return value + 1; }

  void turn(Bench::Bytes& data) override {
    if (data.length() > 0) data[0] ^= 0xff;
  }

  CORBA::ULong take(const Bench::Bytes& data) override { return data.length(); }
};

int main(int argc, char** argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
    PortableServer::Servant_var<Peer> servant = new Peer;
    PortableServer::ObjectId_var id = poa->activate_object(servant);
    CORBA::Object_var reference = poa->id_to_reference(id);
    CORBA::String_var text = orb->object_to_string(reference);
    PortableServer::POAManager_var manager = poa->the_POAManager();
    manager->activate();
    std::printf("%s\n", static_cast<const char*>(text));
    std::fflush(stdout);
    orb->run();
  } catch (const CORBA::Exception& e) {
    std::fprintf(stderr, "%s\n", e._name());
    return 1;
  }
  return 0;
}
