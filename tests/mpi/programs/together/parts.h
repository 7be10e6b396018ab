//gsoap ns service name: parts
//gsoap ns service namespace: urn:parts
//gsoap ns schema namespace: urn:parts
int ns__turn(char *text, char *&turned);
int ns__end(int code, int &ended);
