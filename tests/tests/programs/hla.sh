# needs: rtinode c++
# HLA 1516e by OpenRTI: two federates of one federation send interactions to and fro, small and large ones, through its server. Debian
# has no package of it: from its source, cmake -DOPENRTI_ENABLE_PYTHON_BINDINGS=OFF, make install.
home=$(dirname "$(dirname "$(readlink -f "$(command -v rtinode)")")")
[ -e "$home/include/rti1516e/RTI/RTIambassador.h" ] || { echo "skip: no headers of OpenRTI in $home"; exit 77; }
cat > fom.xml <<'X'
<?xml version="1.0" encoding="utf-8"?>
<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
  <interactions><interactionClass>
    <name>HLAinteractionRoot</name>
    <interactionClass><name>Ping</name><parameter><name>data</name></parameter></interactionClass>
    <interactionClass><name>Pong</name><parameter><name>data</name></parameter></interactionClass>
  </interactionClass></interactions>
</objectModel>
X
cat > main.cpp <<'X'
#include <memory>
#include <RTI/NullFederateAmbassador.h>
#include <RTI/RTIambassador.h>
#include <RTI/RTIambassadorFactory.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
using namespace rti1516e;
struct Federate : NullFederateAmbassador {
    int number = -2;
    bool whole = true;
    std::string data;
    void receiveInteraction(InteractionClassHandle, ParameterHandleValueMap const &values, VariableLengthData const &tag, OrderType,
                            TransportationType, SupplementalReceiveInfo) RTI_THROW((FederateInternalError)) override {
        memcpy(&number, tag.data(), sizeof number);
        const VariableLengthData &value = values.begin()->second;
        data.assign(static_cast<const char *>(value.data()), value.size());
        for (size_t i = 0; i < data.size(); i++) whole &= data[i] == static_cast<char>('a' + (number + i) % 26);
    }
};
static std::string text(int number) {
    std::string text(number % 50 ? 40 : 300000, 0);
    for (size_t i = 0; i < text.size(); i++) text[i] = 'a' + (number + i) % 26;
    return text;
}
int main(int, char **v) {
    const bool ping = !strcmp(v[1], "ping");
    const int rounds = atoi(v[3]);
    try {
        Federate here;
        auto rti = RTIambassadorFactory().createRTIambassador();
        const std::string port = v[2];
        rti->connect(here, HLA_EVOKED, L"rti://127.0.0.1:" + std::wstring(port.begin(), port.end()) + L"/");
        try { rti->createFederationExecution(L"table", L"fom.xml"); } catch (FederationExecutionAlreadyExists const &) { }
        rti->joinFederationExecution(ping ? L"ping" : L"pong", L"player", L"table");
        auto mine = rti->getInteractionClassHandle(ping ? L"Ping" : L"Pong"), theirs = rti->getInteractionClassHandle(ping ? L"Pong" : L"Ping");
        auto parameter = rti->getParameterHandle(mine, L"data");
        rti->publishInteractionClass(mine);
        rti->subscribeInteractionClass(theirs);
        auto send = [&](int number) {
            ParameterHandleValueMap values;
            const std::string data = text(number < 0 ? 1 : number);
            if (number >= 0) values[parameter] = VariableLengthData(data.data(), data.size());
            else values[parameter] = VariableLengthData();
            rti->sendInteraction(mine, values, VariableLengthData(&number, sizeof number));
        };
        if (ping) {
            // Until the other one has joined nobody answers.
            for (; here.number != 0; rti->evokeCallback(0.05)) send(0);
            const auto start = std::chrono::steady_clock::now();
            long bytes = 0;
            for (int i = 1; i <= rounds; i++) {
                for (send(i); here.number != i;) rti->evokeCallback(1.0);
                bytes += here.data.size();
            }
            fprintf(stderr, "%.1f us a round\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6 / rounds);
            send(-1);
            printf("%ld bytes back, whole %d\n", bytes, here.whole);
        } else {
            for (int last = -2; here.number != -1;) {
                rti->evokeCallback(1.0);
                if (here.number == last || here.number == -1) continue;
                send(last = here.number);
            }
            printf("pong whole %d\n", here.whole);
        }
        rti->resignFederationExecution(CANCEL_THEN_DELETE_THEN_DIVEST);
        rti->disconnect();
    } catch (Exception const &e) {
        fprintf(stderr, "%ls\n", e.what().c_str());
        return 1;
    }
}
X
c++ -w -O1 -I"$home/include/rti1516e" main.cpp -L"$home/lib" -Wl,-rpath,"$home/lib" -lrti1516e -lfedtime1516e -lOpenRTI -o federate || exit 1
rtinode -i rti://127.0.0.1:$P1 & s=$!
await $P1
./federate pong $P1 0 > pong.out & p=$!
./federate ping $P1 ${ROUNDS:-1000}
wait $p
echo "pong ended $?"
cat pong.out
kill $s
wait $s 2>/dev/null
echo "server $?"
