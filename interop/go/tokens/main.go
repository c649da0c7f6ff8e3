// Tokens by golang-jwt.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

type asked struct{ Secret, User, Audience, Issuer string }

type token struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	Takes bool   `json:"takes,omitempty"`
	Code  string `json:"code,omitempty"`
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func encoded(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func library() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/golang-jwt/jwt/v5" {
				return "golang-jwt " + module.Version
			}
		}
	}
	return "golang-jwt"
}

type pair struct {
	method  jwt.SigningMethod
	private crypto.PrivateKey
	card    map[string]any
}

func rsaPair(method jwt.SigningMethod) pair {
	key := must(rsa.GenerateKey(rand.Reader, 2048))
	exponent := big.NewInt(int64(key.E)).Bytes()
	return pair{method, key, map[string]any{"kty": "RSA", "n": encoded(key.N.Bytes()), "e": encoded(exponent)}}
}

func p256Pair() pair {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	x, y := key.X.FillBytes(make([]byte, 32)), key.Y.FillBytes(make([]byte, 32))
	return pair{jwt.SigningMethodES256, key, map[string]any{"kty": "EC", "crv": "P-256", "x": encoded(x), "y": encoded(y)}}
}

func ed25519Pair() pair {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(public, err)
	return pair{jwt.SigningMethodEdDSA, private, map[string]any{"kty": "OKP", "crv": "Ed25519", "x": encoded(public)}}
}

func main() {
	var ask asked
	must(0, json.NewDecoder(os.Stdin).Decode(&ask))
	random := make([]byte, 4)
	must(rand.Read(random))
	name := hex.EncodeToString(random)
	now := time.Now().Unix()
	order := []string{"RS256", "ES256", "EdDSA"}
	fresh := func() map[string]pair {
		return map[string]pair{"RS256": rsaPair(jwt.SigningMethodRS256), "ES256": p256Pair(), "EdDSA": ed25519Pair()}
	}
	keys, others := fresh(), fresh()
	var published []map[string]any
	for _, algorithm := range order {
		card := keys[algorithm].card
		card["kid"], card["use"], card["alg"] = algorithm+"-"+name, "sig", algorithm
		published = append(published, card)
	}

	claims := func(changes jwt.MapClaims) jwt.MapClaims {
		all := jwt.MapClaims{"sub": ask.User, "iat": now, "exp": now + 600, "aud": ask.Audience, "iss": ask.Issuer}
		for claim, value := range changes {
			if value == nil {
				delete(all, claim)
			} else {
				all[claim] = value
			}
		}
		return all
	}
	sign := func(method jwt.SigningMethod, key any, kid string, header map[string]any, changes jwt.MapClaims) string {
		made := jwt.NewWithClaims(method, claims(changes))
		if kid != "" {
			made.Header["kid"] = kid
		}
		for field, value := range header {
			made.Header[field] = value
		}
		return must(made.SignedString(key))
	}
	plain := func(algorithm string, header map[string]any, changes jwt.MapClaims) string {
		if algorithm == "HS256" {
			return sign(jwt.SigningMethodHS256, []byte(ask.Secret), "", header, changes)
		}
		key := keys[algorithm]
		return sign(key.method, key.private, algorithm+"-"+name, header, changes)
	}

	var tokens []token
	good := func(what, text string) { tokens = append(tokens, token{Name: what, Token: text, Takes: true}) }
	bad := func(what, text, code string) { tokens = append(tokens, token{Name: what, Token: text, Code: code}) }
	all := append([]string{"HS256"}, order...)
	for _, algorithm := range all {
		good(algorithm, plain(algorithm, nil, nil))
	}
	for _, algorithm := range order {
		good(algorithm+" without a `kid`", sign(keys[algorithm].method, keys[algorithm].private, "", nil, nil))
	}
	good("EdDSA with several audiences", plain("EdDSA", nil, jwt.MapClaims{"aud": []string{"shop", ask.Audience}}))
	for _, algorithm := range all {
		bad(algorithm+" that has expired", plain(algorithm, nil, jwt.MapClaims{"exp": now - 60}), "token_expired")
		if algorithm == "HS256" {
			secret := []byte("another secret of thirty-two bytes or more")
			bad("HS256 that another key signed", sign(jwt.SigningMethodHS256, secret, "", nil, nil), "")
		} else {
			other := others[algorithm]
			bad(algorithm+" that another key signed", sign(other.method, other.private, algorithm+"-"+name, nil, nil), "")
		}
		bad(algorithm+" with `crit`", plain(algorithm, map[string]any{"crit": []string{"x"}, "x": 1}, nil), "")
		whole := plain(algorithm, nil, nil)
		bad(algorithm+" without its signature", whole[:strings.LastIndex(whole, ".")+1], "")
	}
	for _, change := range []struct {
		what    string
		changes jwt.MapClaims
	}{
		{"no `exp`", jwt.MapClaims{"exp": nil}},
		{"`exp` in milliseconds", jwt.MapClaims{"exp": (now + 600) * 1000}},
		{"`nbf` ahead", jwt.MapClaims{"nbf": now + 300}},
		{"another audience", jwt.MapClaims{"aud": "shop"}},
		{"no audience", jwt.MapClaims{"aud": nil}},
		{"another issuer", jwt.MapClaims{"iss": "https://elsewhere.example"}},
		{"no user", jwt.MapClaims{"sub": nil}},
	} {
		bad("ES256, "+change.what, plain("ES256", nil, change.changes), "")
	}
	bad("HS512, which is not taken", sign(jwt.SigningMethodHS512, []byte(ask.Secret), "", nil, nil), "")
	bad("PS256, which is not taken", sign(jwt.SigningMethodPS256, keys["RS256"].private, "", nil, nil), "")
	bad("alg none", sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "", nil, nil), "")

	public := must(x509.MarshalPKIXPublicKey(keys["RS256"].private.(*rsa.PrivateKey).Public()))
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	byHand := func(secret []byte) string {
		header := must(json.Marshal(map[string]any{"alg": "HS256", "kid": "RS256-" + name}))
		signed := encoded(header) + "." + encoded(must(json.Marshal(claims(nil))))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed))
		return signed + "." + encoded(mac.Sum(nil))
	}
	bad("HS256 by the public key's PEM", byHand(text), "")
	bad("HS256 by the public key's JWK's modulus", byHand([]byte(published[0]["n"].(string))), "")
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"library": library(), "jwks": map[string]any{"keys": published}, "tokens": tokens,
	}))
}
