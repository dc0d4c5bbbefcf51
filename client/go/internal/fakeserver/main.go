// Fakeserver is the fake server in the place of a real one, for the conformance scenarios: its
// arguments are the name of the program and those of the program, of which it reads --listen alone.
package main

import (
	"fmt"
	"log"
	"net"
	"os"

	"fencepost/fencetest"
)

func main() {
	address := "127.0.0.1:0"
	for i, arg := range os.Args {
		if arg == "--listen" {
			address = os.Args[i+1]
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	server := fencetest.NewServerOn(listener)
	fmt.Printf("%s listening on %s\n", os.Args[1], server.URL)
	select {}
}
