package fencepost

import (
	"net"
	"net/url"
	"strconv"
	"strings"
)

// serverURL is the address of an HTTP server: a host, and perhaps a port and a path before the
// API's.
type serverURL struct {
	// base is the whole address, without a slash at its end.
	base    string
	host    string
	isHTTPS bool
}

func parseServerURL(text string) (serverURL, *Error) {
	refuse := func(rule string) (serverURL, *Error) {
		shown := text
		// What stands before the host may be a password.
		if at := strings.LastIndexByte(text, '@'); at >= 0 {
			shown = "***" + text[at:]
		}
		return serverURL{}, invalid(
			"server address %q %s, for example https://fence.example:7420", shown, rule)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return refuse("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse("must begin with http:// or https://")
	case u.Hostname() == "":
		return refuse("must name a host")
	case u.User != nil || strings.ContainsAny(text, "?#"):
		return refuse("must have neither credentials nor a query")
	}
	if port, err := strconv.Atoi(u.Port()); strings.HasSuffix(u.Host, ":") ||
		u.Port() != "" && (err != nil || port < 1 || port > 65535) {
		return refuse("must have a port from 1 to 65535")
	}
	base := strings.TrimRight(text, "/")
	return serverURL{base: base, host: u.Hostname(), isHTTPS: u.Scheme == "https"}, nil
}

// refusePlain refuses an address at which others could read tokens on the way: plain HTTP to a
// host that is not this machine.
func (u serverURL) refusePlain() *Error {
	if u.isHTTPS || u.isLoopback() {
		return nil
	}
	return invalid("%s is plain HTTP to another machine, so bearer and fencing tokens could be read "+
		"on the way; write https://, or accept that with InsecureHTTP (FENCE_INSECURE_HTTP=true)",
		u.base)
}

// isLoopback is true for localhost and loopback addresses. Other names may resolve to any machine.
func (u serverURL) isLoopback() bool {
	if strings.EqualFold(u.host, "localhost") {
		return true
	}
	address := net.ParseIP(u.host)
	isMapped := strings.Contains(u.host, ":") && address.To4() != nil
	return address != nil && address.IsLoopback() && !isMapped
}
