# needs: nginx curl
# Many requests on one connection, ranges, and a body that is refused.
mkdir -p www logs; seq 300000 > www/file; chmod 755 . www
cat > nginx.conf <<X
daemon off; pid $PWD/nginx.pid; error_log $PWD/logs/error.log; worker_processes 1;
events { worker_connections 64; }
http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000; client_body_temp_path $PWD/t1; proxy_temp_path $PWD/t2; fastcgi_temp_path $PWD/t3; uwsgi_temp_path $PWD/t4; scgi_temp_path $PWD/t5;
 server { listen 127.0.0.1:$P1; root $PWD/www; } }
X
[ "$(id -u)" = 0 ] && sed -i '1i user root;' nginx.conf
nginx -c $PWD/nginx.conf > nginx.log 2>&1 &
await $P1
curl -sf "http://127.0.0.1:$P1/file?[1-60]" | sha256sum
curl -sf -w '%{num_connects}\n' -o /dev/null "http://127.0.0.1:$P1/file?[1-20]" | paste -sd' '
curl -sf -r 1000-2000 http://127.0.0.1:$P1/file | sha256sum
head -c 3000000 /dev/zero | curl -s -o /dev/null -w '%{http_code}\n' --data-binary @- http://127.0.0.1:$P1/file
