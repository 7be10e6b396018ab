// An echo server on 127.0.0.1, static: its system calls pass by any preloaded library.
package main

import (
	"io"
	"net"
	"os"
)

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			// The plain interfaces only, so that bytes are read and written here and not spliced in the kernel.
			io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			c.Close()
		}()
	}
}
