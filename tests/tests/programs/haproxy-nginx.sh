# needs: haproxy nginx curl
# A proxy in front of a server: small and large answers, many at once.
mkdir -p www logs; echo hello > www/small; seq 700000 > www/large
cat > nginx.conf <<X
daemon off; pid $PWD/nginx.pid; error_log $PWD/logs/error.log; worker_processes 2;
events { worker_connections 256; }
http { access_log off; sendfile on; client_body_temp_path $PWD/t1; proxy_temp_path $PWD/t2; fastcgi_temp_path $PWD/t3; uwsgi_temp_path $PWD/t4; scgi_temp_path $PWD/t5;
 server { listen 127.0.0.1:$P1; root $PWD/www; } }
X
chmod 755 . www
[ "$(id -u)" = 0 ] && sed -i '1i user root;' nginx.conf
nginx -c $PWD/nginx.conf > nginx.log 2>&1 &
await $P1
cat > haproxy.cfg <<X
defaults
  mode http
  timeout connect 9s
  timeout client 20s
  timeout server 20s
frontend f
  bind 127.0.0.1:$P2
  default_backend b
backend b
  server s 127.0.0.1:$P1
X
haproxy -f haproxy.cfg > haproxy.log 2>&1 &
await $P2
curl -sf http://127.0.0.1:$P2/small
curl -sf http://127.0.0.1:$P2/large | sha256sum
for i in $(seq 40); do echo "url = http://127.0.0.1:$P2/small"; echo "output = got$i"; done > list
curl -sf --parallel --parallel-max 10 --config list; echo "status $?"
cat got* | sha256sum
curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:$P2/none
