package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"
)

// verify says whether body, the bytes as they came, was signed by Tidings within the tolerance of now.
func verify(secret string, header http.Header, body []byte, now time.Time, tolerance time.Duration) bool {
	timestamp := header.Get("Tidings-Timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	signature, err := hex.DecodeString(header.Get("Tidings-Signature"))
	fresh := now.Sub(time.Unix(seconds, 0)).Abs() <= tolerance
	return err == nil && hmac.Equal(mac.Sum(nil), signature) && fresh
}
