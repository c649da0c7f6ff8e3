/** A token as the app's server signs it; a fake server does not look at the signature. */
export function unsignedToken(claims: { readonly sub: string; readonly exp?: number; readonly iat?: number; readonly jti?: string }): string {
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  return `${part({ alg: "none" })}.${part(claims)}.x`;
}
