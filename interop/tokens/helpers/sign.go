// `sign KEY USER SECONDS` prints a token.
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	lifetime, err := time.ParseDuration(os.Args[3] + "s")
	if err != nil {
		panic(err)
	}
	token, err := signToken(os.Args[1], os.Args[2], lifetime)
	if err != nil {
		panic(err)
	}
	fmt.Println(token)
}
