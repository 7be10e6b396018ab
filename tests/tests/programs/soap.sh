# needs: soapcpp2 c++
# gSOAP: calls of a calculator, a string of a megabyte, and a fault.
[ -e /usr/include/stdsoap2.h ] || { echo "skip: no libgsoap-dev"; exit 77; }
cat > calc.h <<'X'
//gsoap ns service name: calc
//gsoap ns service namespace: urn:calc
//gsoap ns schema namespace: urn:calc
int ns__add(double a, double b, double &result);
int ns__div(double a, double b, double &result);
int ns__turn(char *text, char *&turned);
int ns__end(int code, int &ended);
X
soapcpp2 -L -I/usr/include/gsoap calc.h > soap.log 2>&1 || { cat soap.log; exit 1; }
cat > main.cpp <<'X'
#include "soapH.h"
#include "calc.nsmap"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
static bool over = false;
int ns__add(struct soap *, double a, double b, double &r) { r = a + b; return SOAP_OK; }
int ns__div(struct soap *s, double a, double b, double &r) { if (b == 0) return soap_sender_fault(s, "by zero", nullptr); r = a / b; return SOAP_OK; }
int ns__turn(struct soap *s, char *t, char *&r) { r = soap_strdup(s, t); std::reverse(r, r + strlen(r)); return SOAP_OK; }
int ns__end(struct soap *, int code, int &r) { over = true; r = code; return SOAP_OK; }
static int serve(int port) {
    struct soap *s = soap_new1(SOAP_IO_KEEPALIVE);
    s->bind_flags = SO_REUSEADDR;
    if (!soap_valid_socket(soap_bind(s, "127.0.0.1", port, 100))) { soap_print_fault(s, stderr); return 1; }
    while (!over) {
        if (!soap_valid_socket(soap_accept(s))) { soap_print_fault(s, stderr); return 1; }
        soap_serve(s);
        soap_destroy(s);
        soap_end(s);
    }
    return 0;
}
static int call(int port) {
    std::string at = "http://127.0.0.1:" + std::to_string(port);
    struct soap *s = soap_new1(SOAP_IO_KEEPALIVE);
    double r = 0;
    for (int i = 0; i < 500; i++) if (soap_call_ns__add(s, at.c_str(), "", r, i, r)) { soap_print_fault(s, stderr); return 1; }
    printf("sum %.0f\n", r);
    std::string text(1 << 20, 'a');
    for (size_t i = 0; i < text.size(); i++) text[i] = 'a' + i % 23;
    char *back = nullptr;
    if (soap_call_ns__turn(s, at.c_str(), "", &text[0], back)) { soap_print_fault(s, stderr); return 1; }
    std::reverse(text.begin(), text.end());
    printf("turned %d\n", text == back);
    if (soap_call_ns__div(s, at.c_str(), "", 1, 0, r)) printf("fault: %s\n", *soap_faultstring(s));
    int code = 0;
    s->keep_alive = 0;
    soap_call_ns__end(s, at.c_str(), "", 7, code);
    printf("ended %d\n", code);
    return 0;
}
int main(int, char **v) { return v[1][0] == 's' ? serve(atoi(v[2])) : call(atoi(v[2])); }
X
c++ -w -O0 main.cpp soapC.cpp soapClient.cpp soapServer.cpp -lgsoap++ -o calc || exit 1
./calc s $P1 & s=$!
await $P1
./calc c $P1 || kill $s
wait $s
echo "server $?"
