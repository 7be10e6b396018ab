# needs: sshd ssh scp ssh-keygen
# A file each way, and a command that reads its input.
[ "$(id -u)" = 0 ] || { echo "skip: sshd wants root"; exit 77; }
mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f user; cp user.pub authorized; chmod 600 authorized
cat > sshd_config <<X
Port $P1
ListenAddress 127.0.0.1
HostKey $PWD/host
AuthorizedKeysFile $PWD/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile $PWD/sshd.pid
Subsystem sftp internal-sftp
X
$(command -v sshd) -D -f $PWD/sshd_config -E $PWD/sshd.log &
await $P1
O="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -i user -o IdentitiesOnly=yes"
seq 900000 > file
ssh $O -p $P1 127.0.0.1 'wc -c' < file
scp -q $O -P $P1 file "127.0.0.1:$PWD/there" && scp -q $O -P $P1 "127.0.0.1:$PWD/there" back; echo "status $?"
cmp file back && sha256sum < back
ssh $O -p $P1 127.0.0.1 'exit 7'; echo "status $?"
