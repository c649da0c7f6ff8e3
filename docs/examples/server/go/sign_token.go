package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"
)

// signToken makes a token by which the app of user binds and calls for a lifetime; key is the setting token_key.
func signToken(key, user string, lifetime time.Duration) (string, error) {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"sub": user, "iat": now.Unix(), "exp": now.Add(lifetime).Unix()})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	unsigned := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(unsigned))
	return unsigned + "." + encode(mac.Sum(nil)), nil
}
