// `sign.mjs KEY USER SECONDS` prints a token.
import { signToken } from "../../../docs/examples/server/node/sign-token.mjs";

const [key, user, seconds] = process.argv.slice(2);
console.log(signToken(key, user, Number(seconds)));
