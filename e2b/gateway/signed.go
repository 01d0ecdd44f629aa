package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// Bounds on what is hashed once for each running sandbox.
const (
	maxSignedPath = 4096
	maxSignedUser = 256
	maxExpiration = 20 // digits
)

// signedFor finds the sandbox whose token made the signature of a request for /files.
// With one address for everything, these URLs do not say which sandbox they are for. Who
// serves it checks the signature again, and when it ends.
func signedFor(r *http.Request, running func() []daemon.Sandbox) (daemon.ID, bool) {
	operation := operationOf(r)
	if operation == "" {
		return "", false
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", false
	}
	signature, path, user, expires := q.Get("signature"), q.Get("path"), q.Get("username"), q.Get("signature_expiration")
	if len(signature) != len("v1_")+base64.RawStdEncoding.EncodedLen(sha256.Size) ||
		len(path) > maxSignedPath || len(user) > maxSignedUser || len(expires) > maxExpiration {
		return "", false
	}
	before, after := path+":"+operation+":"+user+":", ""
	if expires != "" {
		after = ":" + expires
	}
	var found daemon.ID
	for _, sb := range running() {
		if sb.AccessToken == "" {
			continue
		}
		sum := sha256.Sum256([]byte(before + sb.AccessToken + after))
		// All are looked at, and each in the same time.
		if subtle.ConstantTimeCompare([]byte("v1_"+base64.RawStdEncoding.EncodeToString(sum[:])), []byte(signature)) == 1 {
			found = sb.ID
		}
	}
	return found, found != ""
}

// operationOf says what a request may be signed for; empty for nothing.
func operationOf(r *http.Request) string {
	if r.URL.Path != "/files" || r.URL.RawQuery == "" {
		return ""
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return "read"
	case http.MethodPost:
		return "write"
	}
	return ""
}
