// Serves one Lab::Echo under the key `Echo` (server), or calls one and prints `well` (client REFERENCE). For a line of the server's: `ready`.
#include <cstdio>
#include <cstring>
#include <string>
#include "Echo.hh"

class Echo : public POA_Lab::Echo {
 public:
  char* greet(const char* name) override { return CORBA::string_dup((std::string("hello ") + name).c_str()); }

  void turn(Lab::Bytes& data) override {
    if (data.length() == 0) throw Lab::Refused("nothing to turn");
    for (CORBA::ULong i = 0; i < data.length(); i++) data[i] ^= 0xff;
  }
};

static int serve(CORBA::ORB_ptr orb) {
  CORBA::Object_var object = orb->resolve_initial_references("omniINSPOA");
  PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
  PortableServer::Servant_var<Echo> servant = new Echo;
  PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId("Echo");
  poa->activate_object_with_id(id, servant);
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
  std::printf("ready\n");
  std::fflush(stdout);
  orb->run();
  return 0;
}

static int call(CORBA::ORB_ptr orb, const char* reference) {
  CORBA::Object_var object = orb->string_to_object(reference);
  Lab::Echo_var echo = Lab::Echo::_narrow(object);
  if (CORBA::is_nil(echo)) return 3;
  CORBA::String_var told = echo->greet("MADRIGAL-PLAIN-TEXT.");
  if (std::strcmp(told, "hello MADRIGAL-PLAIN-TEXT.") != 0) return 4;
  Lab::Bytes data;
  data.length(300000);
  for (CORBA::ULong i = 0; i < data.length(); i++) data[i] = i % 251;
  echo->turn(data);
  if (data.length() != 300000) return 5;
  for (CORBA::ULong i = 0; i < data.length(); i++)
    if (data[i] != (i % 251 ^ 0xff)) return 6;
  try {
    data.length(0);
    echo->turn(data);
    return 7;
  } catch (const Lab::Refused&) {
    std::printf("well\n");
  }
  return 0;
}

int main(int argc, char** argv) {
  try {
    CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
    return argc > 2 ? call(orb, argv[2]) : serve(orb);
  } catch (const CORBA::Exception& e) {
    std::fprintf(stderr, "%s\n", e._name());
    return 1;
  }
}
